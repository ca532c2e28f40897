-- Record the reward of a session.
-- Invariant: the first reward counts.
-- KEYS sessions attempts
-- ARGV attempt index reward
-- Reply {'', the reward that counts}, or {why not}: 'ended', or as sessions_go_on
local known = redis.call('HGET', sessions, 'reward:' .. index)
if known then return {'', known} end
local refusal = sessions_go_on(sessions, attempts, attempt, index)
if refusal ~= '' then return {refusal} end
if redis.call('HEXISTS', sessions, 'ended:' .. index) == 1 then return {'ended'} end
redis.call('HSET', sessions, 'reward:' .. index, reward)
return {'', reward}
