-- End live sessions that had no call for their idle time, and discard those whose reward did not come in time.
-- Invariant: as of place_ended_session.
-- O(those, 256 of each at most). KEYS open waiting ready order calls calls_due calls_ended
-- ARGV prefix: of the keys of sessions   Reply how many
local open, waiting, ready, order, calls, due, log = unpack(KEYS)
local done = 0
for _, from in ipairs({open, waiting}) do
  local found = redis.call('ZRANGEBYSCORE', from, '-inf', now_ms(), 'WITHSCORES', 'LIMIT', 0, 256)
  for i = 1, #found, 2 do
    local session = ARGV[1] .. found[i]
    local ended = redis.call('HGET', session, 'ended') or found[i + 1]
    end_busy_calls(session, calls, due, log, found[i], 0)
    place_ended_session(session, open, waiting, ready, order, found[i], tonumber(ended))
    done = done + 1
  end
end
return done
