-- Close a group's sessions, unless its attempt has closed them before (close_sessions in common/sessions.lua).
-- KEYS sessions calls calls_due calls_ended
-- ARGV finish_id state
-- Reply 1
end_call(calls, calls_due, calls_ended, finish_id)
close_sessions(sessions, state)
return 1
