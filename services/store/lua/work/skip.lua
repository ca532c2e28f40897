-- End a held task without sampling it, because the curriculum skips it, and count it.
-- Invariants: only the attempt that holds a task ends it, once. `last_finished` moves as in complete.lua: skipped
-- tasks never end a run as `exhausted`.
-- KEYS attempts held ledger tries order partials bytes
-- ARGV attempt detail
-- Reply 1 skipped, 0 not held
local task = end_attempt(attempts, held, attempt)
if not task then return 0 end
forget_partial(partials, bytes, task)
drop_task(ledger, tries, task, 'curriculum', detail)
redis.call('HSET', order, 'last_finished', redis.call('HGET', order, 'position'))
redis.call('HINCRBY', order, 'skipped_total', 1)
return 1
