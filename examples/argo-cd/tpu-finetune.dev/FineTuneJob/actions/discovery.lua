-- Actions of a FineTuneJob for Argo CD, each disabled where it would do nothing or be refused.
local spec, status = obj.spec or {}, obj.status or {}

local finished = false
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Finished" then
    finished = condition.status == "True"
  end
end

local suspended, cancelled = spec.suspend == true, spec.cancel == true
local actions = {}
actions["suspend"] = { ["disabled"] = finished or cancelled or suspended }
actions["resume"] = { ["disabled"] = cancelled or not suspended }
actions["retry"] = { ["disabled"] = cancelled or not finished or status.phase ~= "Failed" }
actions["cancel"] = { ["disabled"] = cancelled or finished }
return actions
