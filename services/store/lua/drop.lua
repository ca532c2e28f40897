-- End the draw that an attempt holds, with a reason, without training it.
-- Invariant: a draw ends once: only the attempt that holds it can end it.
-- KEYS attempts held ledger   ARGV attempt reason detail   Reply 1 dropped, 0 not held
local attempts, held, ledger = unpack(KEYS)
if redis.call('ZREM', attempts, ARGV[1]) == 0 then return 0 end
local draw = string.match(redis.call('HGET', held, ARGV[1]), '^(%S+)')
redis.call('HDEL', held, ARGV[1])
redis.call('XADD', ledger, '*', 'end', 'dropped', 'reason', ARGV[2], 'detail', ARGV[3],
  'draws', cjson.encode({draw}))
return 1
