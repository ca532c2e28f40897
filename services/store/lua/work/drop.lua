-- End the task that an attempt holds, with a reason, without training it.
-- Invariant: a task ends once: only the attempt that holds it can end it.
-- Its sessions end with it.
-- KEYS attempts held ledger tries sessions_ready sessions   ARGV attempt reason detail   Reply 1 dropped, 0 not held
local attempts, held, ledger, tries, ready, sessions = unpack(KEYS)
local task = end_attempt(attempts, held, ARGV[1])
if not task then return 0 end
end_sessions(ready, sessions, ARGV[1], 'failed')
drop_task(ledger, tries, task, ARGV[2], ARGV[3])
return 1
