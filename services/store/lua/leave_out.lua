-- End the draw that an attempt holds because its group has no signal, and count it.
-- Invariants: a draw ends once: only the attempt that holds it can end it. `left_out` counts the
-- groups that ended so while those of one batch were finished (see complete, lease); the totals
-- only grow. The row was of use to nobody, but can be: `last_finished` moves as in complete, so
-- that only `left_out` ends a run in which no group has a signal.
-- KEYS attempts held ledger tries order   ARGV attempt detail reward
-- Reply 1 left out, 0 not held
local attempts, held, ledger, tries, order = unpack(KEYS)
local draw = let_go(attempts, held, ARGV[1])
if not draw then return 0 end
drop_draw(ledger, tries, draw, 'no_signal', ARGV[2])
redis.call('HSET', order, 'last_finished', redis.call('HGET', order, 'position'))
redis.call('HINCRBY', order, 'left_out', 1)
redis.call('HINCRBY', order, 'left_out_total', 1)
redis.call('HINCRBYFLOAT', order, 'left_out_reward', ARGV[3])
return 1
