-- Give the sessions of a named group new keys, and renew the lease of its attempt: the client asks for the group
-- again, and may never have got the first answer.
-- KEYS sessions attempts sessions_named
-- ARGV attempt seconds_kept keys...
-- Reply '', or why not: as sessions_go_on
local refusal = sessions_go_on(sessions, attempts, attempt, 0)
if refusal ~= '' then return refusal end
for i, key in ipairs(keys) do redis.call('HSET', sessions, 'key:' .. i - 1, key) end
redis.call('EXPIRE', sessions_named, seconds_kept)
return ''
