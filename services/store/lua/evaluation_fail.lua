-- End the open evaluation, because nobody can answer it, and open the next.
-- Invariants: another one than the one meant stays as it is; so does one for which another worker
-- has a seat: it may serve the version, which this one cannot load.
-- KEYS evaluation queue requests ended returned attempts held seats   ARGV id worker reason
-- Reply 1 failed, 0 not open, or not for this worker to end
local id, worker, reason = unpack(ARGV)
if redis.call('HGET', KEYS[1], 'id') ~= id then return 0 end
local others = redis.call('ZCOUNT', KEYS[8], '(' .. now_ms(), '+inf')
local own = tonumber(redis.call('ZSCORE', KEYS[8], worker) or '0')
if own > now_ms() then others = others - 1 end
if others > 0 then return 0 end
end_evaluation(KEYS, id, 'failed', reason)
return 1
