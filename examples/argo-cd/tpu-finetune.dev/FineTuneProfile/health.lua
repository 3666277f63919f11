-- Health of a FineTuneProfile for Argo CD. How to install it: docs/gitops.md.
local status = obj.status or {}

-- A status of an older generation says nothing about this one; -1 means that the operator has not observed it yet.
if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "Waiting for the operator to observe the profile" }
end

for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Valid" then
    return { status = condition.status == "True" and "Healthy" or "Degraded", message = condition.message }
  end
end
return { status = "Progressing", message = "Waiting for the operator to observe the profile" }
