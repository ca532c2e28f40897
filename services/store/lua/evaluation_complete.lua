-- Record the outcome of one evaluation row.
-- Invariant: one outcome per row, from the attempt that holds it; the evaluation is done when
-- every row has one.
-- KEYS evaluation attempts held results   ARGV id attempt outcome   Reply 1 accepted, 0 discarded
local evaluation, attempts, held, results = unpack(KEYS)
if redis.call('HGET', evaluation, 'id') ~= ARGV[1] then return 0 end
if redis.call('ZREM', attempts, ARGV[2]) == 0 then return 0 end
local row = redis.call('HGET', held, ARGV[2])
redis.call('HDEL', held, ARGV[2])
redis.call('HSET', results, row, ARGV[3])
if redis.call('HLEN', results) == tonumber(redis.call('HGET', evaluation, 'rows')) then
  redis.call('HSET', evaluation, 'state', 'done')
end
return 1
