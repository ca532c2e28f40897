-- Release a worker's calls without an answer. Other workers may claim them at once.
-- KEYS calls calls_due calls_asked
-- ARGV worker id...
-- Reply the number of calls that were released
local released = 0
for i = 2, #ARGV do
  if redis.call('HGET', calls, ARGV[i] .. ':worker') == ARGV[1] then
    add_call(calls, calls_due, calls_asked, ARGV[i], redis.call('HGET', calls, ARGV[i]))
    released = released + 1
  end
end
return released
