-- Hand evaluation rows back.   Invariant: only held ones.
-- KEYS returned attempts held   ARGV attempt...
for i = 1, #ARGV do
  if redis.call('ZREM', KEYS[2], ARGV[i]) == 1 then
    redis.call('LPUSH', KEYS[1], redis.call('HGET', KEYS[3], ARGV[i]))
    redis.call('HDEL', KEYS[3], ARGV[i])
  end
end
return 0
