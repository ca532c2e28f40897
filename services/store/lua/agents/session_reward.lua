-- Record the reward of a session.
-- Invariant: the first reward counts.
-- KEYS sessions attempts
-- ARGV attempt index reward
-- Reply {'', the reward that counts}, or {why not}: 'ended', or as sessions_go_on
local known = redis.call('HGET', sessions, 'reward:' .. ARGV[2])
if known then return {'', known} end
local refusal = sessions_go_on(sessions, attempts, ARGV[1], ARGV[2])
if refusal ~= '' then return {refusal} end
if redis.call('HEXISTS', sessions, 'ended:' .. ARGV[2]) == 1 then return {'ended'} end
redis.call('HSET', sessions, 'reward:' .. ARGV[2], ARGV[3])
return {'', ARGV[3]}
