-- End a held task without training it, for a reason.
-- Invariant: only the attempt that holds a task ends it, once, and its sessions with it.
-- KEYS attempts held ledger tries sessions_ready sessions
-- ARGV attempt reason detail
-- Reply 1 dropped, 0 not held
local task = end_attempt(attempts, held, ARGV[1])
if not task then return 0 end
end_sessions(sessions_ready, sessions, ARGV[1], 'failed')
drop_task(ledger, tries, task, ARGV[2], ARGV[3])
return 1
