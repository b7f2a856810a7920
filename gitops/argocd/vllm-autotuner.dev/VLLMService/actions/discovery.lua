-- What a person can ask of the operator now; the others are shown but disabled.
local status = obj.status or {}
local annotations = obj.metadata.annotations or {}
local mode = "Recommend"
if obj.spec.tuning ~= nil and obj.spec.tuning.mode ~= nil then
  mode = obj.spec.tuning.mode
end
local paused = annotations["vllm-autotuner.dev/pause"] ~= nil and annotations["vllm-autotuner.dev/pause"] ~= "false"
local advice = status.recommendation ~= nil
local actions = {}
actions["approve"] = { disabled = not (advice and mode == "Approve") }
actions["reject"] = { disabled = not advice }
actions["rollback"] = { disabled = status.activeChange == nil and status.rollbackFailed == nil }
actions["pause"] = { disabled = paused }
actions["resume"] = { disabled = not paused }
actions["retry"] = { disabled = false }
return actions
