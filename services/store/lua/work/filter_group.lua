-- End the task that an attempt holds because its group is filtered, and count the group.
-- Invariants: a task ends once: only the attempt that holds it can end it. `filtered` counts the
-- groups that ended so while those of one batch were finished (see complete, lease); the totals
-- only grow. The row was of use to nobody, but can be: `last_finished` moves as in complete, so
-- that only `filtered` ends a run in which every group is filtered. Its sessions end with it.
-- KEYS attempts held ledger tries order pass_rates sessions_ready sessions
-- ARGV attempt detail reward dataset ('' where there is one) row passed (row '' without a curriculum)
-- Reply 1 filtered, 0 not held
local attempts, held, ledger, tries, order, pass_rates, ready, sessions = unpack(KEYS)
local task = end_attempt(attempts, held, ARGV[1])
if not task then return 0 end
drop_task(ledger, tries, task, 'filtered_group', ARGV[2])
end_sessions(ready, sessions, ARGV[1], 'filtered')
redis.call('HSET', order, 'last_finished', redis.call('HGET', order, 'position'))
redis.call('HINCRBY', order, 'filtered', 1)
redis.call('HINCRBY', order, 'filtered_total', 1)
note_passed(pass_rates, ARGV[5], ARGV[6])
if ARGV[4] ~= '' then redis.call('HINCRBY', order, 'filtered_of:' .. ARGV[4], 1) end
redis.call('HINCRBYFLOAT', order, 'filtered_reward', ARGV[3])
return 1
