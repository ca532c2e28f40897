-- End the draw that an attempt holds, with a reason, without training it.
-- Invariant: a draw ends once: only the attempt that holds it can end it.
-- KEYS attempts held ledger tries   ARGV attempt reason detail   Reply 1 dropped, 0 not held
local attempts, held, ledger, tries = unpack(KEYS)
local draw = let_go(attempts, held, ARGV[1])
if not draw then return 0 end
drop_draw(ledger, tries, draw, ARGV[2], ARGV[3])
return 1
