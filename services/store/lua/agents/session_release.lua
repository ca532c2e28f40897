-- A worker gives up calls without an answer: others may take them at once.
-- KEYS calls calls_due calls_asked   ARGV worker id...   Reply how many
local calls, due, asked = unpack(KEYS)
local released = 0
for i = 2, #ARGV do
  if redis.call('HGET', calls, ARGV[i] .. ':worker') == ARGV[1] then
    add_call(calls, due, asked, ARGV[i], redis.call('HGET', calls, ARGV[i]))
    released = released + 1
  end
end
return released
