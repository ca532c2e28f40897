-- Forget the turns of a group whose attempt has ended, and remember why; its keys permit nothing more.
-- KEYS sessions calls calls_due calls_log   ARGV finish_id state field...   Reply 1
local sessions, calls, due, log = unpack(KEYS)
end_call(calls, due, log, ARGV[1])
if redis.call('EXISTS', sessions) == 0 then return 1 end
redis.call('HSET', sessions, 'state', ARGV[2])
-- A live one is kept for a week until then.
if redis.call('HEXISTS', sessions, 'reward_ms') == 1 then redis.call('EXPIRE', sessions, 3600) end
for i = 3, #ARGV do redis.call('HDEL', sessions, ARGV[i]) end
return 1
