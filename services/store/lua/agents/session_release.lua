-- Release a worker's calls without an answer. Other workers may claim them at once.
-- KEYS calls calls_due calls_asked
-- ARGV worker ids...
-- Reply the number of calls that were released
local released = 0
for _, id in ipairs(ids) do
  if redis.call('HGET', calls, id .. ':worker') == worker then
    add_call(calls, calls_due, calls_asked, id, redis.call('HGET', calls, id))
    released = released + 1
  end
end
return released
