-- Health of a FineTuneJob for Argo CD. How to install it: docs/gitops.md.
local status = obj.status or {}

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

-- A status of an older generation says nothing about this one; -1 means that the operator has not observed it yet.
if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "Waiting for the operator to observe the job" }
end

-- A suspended job with an invalid edit would make no progress when it is resumed.
if is("Suspended", "True") and is("Valid", "False") then
  return { status = "Degraded", message = "Suspended, and not valid: " .. (conditions.Valid.message or "") }
end

local health = "Progressing"
if is("Suspended", "True") then
  health = "Suspended"
elseif is("Reconciling", "True") then
  health = "Progressing"
elseif is("Stalled", "True") then
  health = "Degraded"
elseif is("Finished", "True") then
  health = "Healthy"
end
return { status = health, message = status.summary or "" }
