-- End a held task because its group is filtered, and count the group.
-- Invariants: only the attempt that holds a task ends it, once, and its sessions with it. `filtered` counts the
-- filtered groups of the present batch (complete.lua, lease.lua); the totals only grow. `last_finished` moves as in
-- complete.lua: the row may be useful later, so a run whose groups are all filtered ends as `filtered_group`, not
-- as `exhausted`.
-- KEYS attempts held ledger tries order pass_rates partials bytes sessions_ready sessions
-- ARGV attempt detail reward dataset row passed
--   dataset: '' without a mixture. row: '' without a curriculum
-- Reply 1 filtered, 0 not held
local task = end_attempt(attempts, held, attempt)
if not task then return 0 end
forget_partial(partials, bytes, task)
drop_task(ledger, tries, task, 'filtered_group', detail)
end_sessions(sessions_ready, sessions, attempt, 'filtered')
redis.call('HSET', order, 'last_finished', redis.call('HGET', order, 'position'))
redis.call('HINCRBY', order, 'filtered', 1)
redis.call('HINCRBY', order, 'filtered_total', 1)
note_passed(pass_rates, row, passed)
if dataset ~= '' then redis.call('HINCRBY', order, 'filtered_of:' .. dataset, 1) end
redis.call('HINCRBYFLOAT', order, 'filtered_reward', reward)
return 1
