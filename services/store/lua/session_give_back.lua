-- Its client gives a group back: its sessions end untrained, and its task is leased again.
-- Invariant: a group whose sessions have all ended, or that is over, stays as it is.
-- KEYS sessions attempts held returned calls calls_due calls_ended   ARGV attempt
-- Reply 1, also where nothing changes; 0: there is no such group
local sessions, attempts, held, returned, calls, due, log = unpack(KEYS)
local s = redis.call('HMGET', sessions, 'samples', 'state')
if not s[1] then return 0 end
if s[2] then return 1 end
for index = 0, tonumber(s[1]) - 1 do
  for digest in pairs(words(redis.call('HGET', sessions, 'busy:' .. index))) do
    end_call(calls, due, log, ARGV[1] .. '/' .. index .. '/' .. digest)
  end
end
local task = end_attempt(attempts, held, ARGV[1])
if task then return_task(returned, task) end
close_sessions(sessions, 'released')
return 1
