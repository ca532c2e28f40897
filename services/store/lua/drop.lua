-- End the task that an attempt holds, with a reason, without training it.
-- Invariant: a task ends once: only the attempt that holds it can end it.
-- A live session that is dropped is ready no more.
-- KEYS attempts held ledger tries sessions_ready   ARGV attempt reason detail   Reply 1 dropped, 0 not held
local attempts, held, ledger, tries, ready = unpack(KEYS)
local task = end_attempt(attempts, held, ARGV[1])
if not task then return 0 end
redis.call('ZREM', ready, ARGV[1])
drop_task(ledger, tries, task, ARGV[2], ARGV[3])
return 1
