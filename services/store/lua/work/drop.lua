-- End a held task without training it, for a reason.
-- Invariant: only the attempt that holds a task ends it, once, and its sessions with it.
-- KEYS attempts held ledger tries partials bytes sessions_ready sessions
-- ARGV attempt reason detail
-- Reply 1 dropped, 0 not held
local task = end_attempt(attempts, held, attempt)
if not task then return 0 end
forget_partial(partials, bytes, task)
end_sessions(sessions_ready, sessions, attempt, 'failed')
drop_task(ledger, tries, task, reason, detail)
return 1
