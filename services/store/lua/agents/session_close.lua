-- A group's sessions are not worked on any more; as of close_sessions, unless its attempt has ended before.
-- KEYS sessions calls calls_due calls_ended   ARGV finish_id state   Reply 1
local sessions, calls, due, log = unpack(KEYS)
end_call(calls, due, log, ARGV[1])
close_sessions(sessions, ARGV[2])
return 1
