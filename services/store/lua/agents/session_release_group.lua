-- Release a group for its client: its sessions end untrained, and its task is leased again.
-- Invariants: a group whose sessions have all ended, or that is over, stays as it is. A live session is not a group.
-- KEYS sessions attempts held returned calls calls_due calls_ended
-- ARGV attempt
-- Reply 1 (also if nothing changes), or 0 if the group is unknown
local s = hash_fields(sessions, 'samples', 'state', 'reward_ms')
if not s.samples or s.reward_ms then return 0 end
if s.state then return 1 end
for index = 0, tonumber(s.samples) - 1 do
  end_busy_calls(sessions, calls, calls_due, calls_ended, attempt, index)
end
local task = end_attempt(attempts, held, attempt)
if task then return_task(returned, task) end
close_sessions(sessions, 'released')
return 1
