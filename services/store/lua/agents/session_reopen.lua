-- Give the sessions of a named group other keys: its client asks for it again, and may have no answer yet.
-- The lease of its attempt is renewed.
-- KEYS sessions attempts named   ARGV attempt seconds_kept key...   Reply '', or why not: as sessions_go_on
local sessions, attempts, named = unpack(KEYS)
local refusal = sessions_go_on(sessions, attempts, ARGV[1], 0)
if refusal ~= '' then return refusal end
for i = 3, #ARGV do redis.call('HSET', sessions, 'key:' .. i - 3, ARGV[i]) end
redis.call('EXPIRE', named, ARGV[2])
return ''
