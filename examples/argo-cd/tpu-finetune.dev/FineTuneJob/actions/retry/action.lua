-- Raises spec.retry.generation above the newest one that the operator has processed, as `finetune retry` does.
local given = (obj.spec.retry or {}).generation or 0
local done = (obj.status or {}).retryGeneration or 0
if done > given then
  given = done
end
obj.spec.retry = { ["generation"] = given + 1 }
return obj
