-- End the task that an attempt holds without sampling it, as the curriculum says, and count it.
-- Invariant: a task ends once: only the attempt that holds it can end it. Its row has been of use before:
-- `last_finished` moves as in complete, so that skipped tasks never end a run as `exhausted`.
-- KEYS attempts held ledger tries order   ARGV attempt detail   Reply 1 skipped, 0 not held
local attempts, held, ledger, tries, order = unpack(KEYS)
local task = end_attempt(attempts, held, ARGV[1])
if not task then return 0 end
drop_task(ledger, tries, task, 'curriculum', ARGV[2])
redis.call('HSET', order, 'last_finished', redis.call('HGET', order, 'position'))
redis.call('HINCRBY', order, 'skipped_total', 1)
return 1
