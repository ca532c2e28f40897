-- Give the sessions of a named group new keys, and renew the lease of its attempt: the client asks for the group
-- again, and may never have got the first answer.
-- KEYS sessions attempts sessions_named
-- ARGV attempt seconds_kept key...
-- Reply '', or why not: as sessions_go_on
local refusal = sessions_go_on(sessions, attempts, ARGV[1], 0)
if refusal ~= '' then return refusal end
for i = 3, #ARGV do redis.call('HSET', sessions, 'key:' .. i - 3, ARGV[i]) end
redis.call('EXPIRE', sessions_named, ARGV[2])
return ''
