-- Health of a FineTuneJob for Argo CD. How to install it: docs/gitops.md.
local status = obj.status or {}

local function is_true(kind)
  for _, condition in ipairs(status.conditions or {}) do
    if condition.type == kind then
      return condition.status == "True"
    end
  end
  return false
end

-- A status of an older generation says nothing about this one; -1 means that the operator has not observed it yet.
if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "Waiting for the operator to look at the job" }
end

local health = "Progressing"
if is_true("Suspended") then
  health = "Suspended"
elseif is_true("Reconciling") then
  health = "Progressing"
elseif is_true("Stalled") then
  health = "Degraded"
elseif is_true("Finished") then
  health = "Healthy"
end
return { status = health, message = status.summary or "" }
