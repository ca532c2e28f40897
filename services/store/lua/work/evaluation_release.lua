-- Release rows of a worker and, where it is named, its seat.   Invariant: only held ones.
-- KEYS returned attempts held seats   ARGV worker ('' to keep its seat) attempt...
for i = 2, #ARGV do
  if redis.call('ZREM', KEYS[2], ARGV[i]) == 1 then
    redis.call('LPUSH', KEYS[1], redis.call('HGET', KEYS[3], ARGV[i]))
    redis.call('HDEL', KEYS[3], ARGV[i])
  end
end
if ARGV[1] ~= '' then redis.call('ZREM', KEYS[4], ARGV[1]) end
return 0
