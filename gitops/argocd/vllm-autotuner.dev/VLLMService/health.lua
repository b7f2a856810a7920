-- Health of a VLLMService for Argo CD: what its conditions say, never a guess.
-- Tuning that is paused, and an open circuit breaker, are told but are no trouble of the service: it serves.
local hs = { status = "Progressing", message = "the operator has not reported on this object yet" }
if obj.status == nil or obj.status.conditions == nil then
  return hs
end
if obj.status.observedGeneration == nil or obj.status.observedGeneration < obj.metadata.generation then
  hs.message = "the operator has not seen the latest spec yet"
  return hs
end
local found = {}
for _, condition in ipairs(obj.status.conditions) do
  found[condition.type] = condition
end
local function holds(name)
  return found[name] ~= nil and found[name].status == "True"
end
for _, name in ipairs({ "RollbackFailed", "Stalled" }) do
  if holds(name) then
    hs.status = "Degraded"
    hs.message = found[name].message
    return hs
  end
end
if not holds("Ready") then
  if found.Ready ~= nil and found.Ready.message ~= nil then
    hs.message = found.Ready.message
  end
  return hs
end
hs.status = "Healthy"
hs.message = "serving"
if obj.status.diagnosis ~= nil then
  hs.message = obj.status.diagnosis.class
end
if obj.status.summary ~= nil and obj.status.summary.change ~= nil then
  hs.message = hs.message .. "; change: " .. obj.status.summary.change
elseif obj.status.recommendation ~= nil then
  local advice = obj.status.recommendation
  hs.message = hs.message .. "; recommends " .. advice.knob .. " " .. (advice.current or "default") .. " -> " .. advice.recommended
end
for _, name in ipairs({ "Paused", "CircuitOpen", "OwnershipConflict" }) do
  if holds(name) then
    hs.message = hs.message .. "; " .. name .. ": " .. found[name].message
  end
end
return hs
