-- Shared by every script: Redis' own clock, so that hosts need not agree on the time.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A learner that was replaced while it slept holds an old epoch and may change nothing.
local function fenced(run_key, epoch)
  return redis.call('HGET', run_key, 'epoch') ~= epoch
end

-- Draws travel as 'position:epoch:rows:index'; the position names the draw everywhere else.
local function position_of(draw)
  return string.match(draw, '^(%d+):')
end
