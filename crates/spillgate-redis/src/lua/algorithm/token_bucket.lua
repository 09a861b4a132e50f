-- Token bucket: in any interval L, admitted <= burst + floor(L * rate).
--
-- Mirrors token_bucket.rs. A level is a number of whole tokens in use, and `drained`: how much of the first
-- of them has drained, in parts of 1/d us. `drained` is below n. It is negative while the boundary, the
-- instant at which that token began to drain, lies ahead of now.
--
-- Formulas that fast paths use too are fragments of token_bucket/level.lua.
--
-- Parameters: burst, forced_max, n, d, count, period_us, code (of the period; 0 if it has none)
-- Reply:      used, drained, gone_after_us (-1: the state was written under these parameters)
-- Bodies:     kind 0: code * 16 + boundary, count, used; for d = 1, a period with a code, burst, count and used
--                     below 65536
--             kind 1: boundary, part, period_us, count, used
--             kind 6: as 1, after the first receipt; incarnation, mark, low
-- Low:        the fewest whole tokens in use since it began. `mark` is the sum of all refunds, and of the lows that
--             were given up. A receipt carries its value: what a low proves for a charge is less by what was added
--             since.

local SHORT, LONG, RECEIPTS = 0, 1, 6
-- The periods with a code, in seconds.
local PERIOD_SECONDS = { 1, 10, 30, 60, 300, 600, 900, 3600, 43200, 86400, 604800, 2592000, 31536000 }

local function params(program, i)
    return {
        burst = program[i], forced_max = program[i + 1], n = program[i + 2], d = program[i + 3],
        count = program[i + 4], period_us = program[i + 5], code = program[i + 6],
        -- Set by the driver; listed here so that the table is created in its full size.
        algorithm = 0, module = 0, name = 0, long_name = 0,
    }, i + 7
end

-- Returns the parts that drained since the boundary, as whole tokens and the rest; at most `most` tokens.
local function drained_since(boundary_us, part, n, d, most)
    local elapsed = now - boundary_us
    -- Far more than `most` has drained. The exact product might overflow, and is not needed.
    if (elapsed * d - part) / n > most * 1.001 + 1 then
        return most, 0
    end
    local tokens, rest = mul_div(elapsed, d, n)
    rest = rest - part
    return tokens + floor(rest / n), rest % n
end

-- Creates an empty bucket, in the full size of its table.
local function new_counter()
    return {
        used = 0, drained = 0, incarnation = 0, mark = 0, low = 0,
        record = false, limit = false, fits = false, changed = false,
    }
end

local function untouched(self)
    self.used, self.drained, self.gone_after_us, self.incarnation = 0, 0, nil, 0
    return self
end

local function drain(self, used, boundary_us, part, limit)
    if used > limit.forced_max then
        -- A larger burst admitted this use. It is cut off, so nothing is certain about the charges that it contains.
        used, self.incarnation = limit.forced_max, 0
    end
    if now <= boundary_us then
        local ahead_us = boundary_us - now
        -- The tolerance is a second, or the bucket's refill time if that is shorter. A product that is not exact is far
        -- longer than a second.
        if ahead_us > min(1000000, ceil(limit.burst * limit.n / limit.d)) then
            untouched(self)
            self.used, self.rebased = used, true
            return self
        end
        self.used, self.drained = used, -(ahead_us * limit.d + part)
        return self
    end
    local tokens, rest = drained_since(boundary_us, part, limit.n, limit.d, used)
    if tokens >= used then
        return untouched(self)
    end
    self.used, self.drained = used - tokens, rest
    return self
end

-- Converts state of other parameters: it drains at the new rate, and is gone at the latest when it would have
-- been under its own.
local function convert(self, used, boundary_us, part, count, period_us, limit)
    local whole, rest = mul_div(period_us, used, count)
    local begun = part > 0 and 1 or 0
    local gone_after_us = whole + (rest > 0 and 1 or 0) + begun - (now - boundary_us)
    drain(self, used, boundary_us + begun, 0, limit)
    if gone_after_us <= 0 then
        self.rebased = nil
        return untouched(self)
    end
    if not self.rebased and self.used > 0 then
        self.gone_after_us = gone_after_us
    end
    return self
end

-- Returns the content of a body: boundary_us, part, period_us, count, used. Before a body lies the head, or
-- the end of the limit's long name.
local function stored(value, kind, at)
    local is_long, format, bytes = kind ~= SHORT, nil, nil
    -- @inline record_format(is_long) -> format, bytes
    local high, low, third, period_us, count, used = unpack_record(format, value, at - 1)
    if is_long then
        return high % 256 * 281474976710656 + low, third, period_us, count, used
    end
    local then_us = PERIOD_SECONDS[floor(high % 256 / 16)] * 1000000
    return high % 16 * 281474976710656 + low, 0, then_us, floor(third / 65536), third % 65536
end

local function load(value, kind, at, limit)
    local self = new_counter()
    local boundary_us, part, period_us, count, used = stored(value, kind, at)
    if count ~= limit.count or period_us ~= limit.period_us then
        return convert(self, used, boundary_us, part, count, period_us, limit)
    end
    if kind == RECEIPTS then
        -- @inline unpack_receipts(value, at + 25) -> self.incarnation, self.mark, self.low
    end
    return drain(self, used, boundary_us, part, limit)
end

-- Returns a bucket without a record: empty, or used up at the instant of a loss of data.
local function missing(limit)
    local self = new_counter()
    return lost_us > 0 and drain(self, limit.burst, lost_us, 0, limit) or self
end

-- Returns how many more units fit; negative if force used more than the limit.
local function room(self, limit)
    return limit.burst - self.used
end

local function charge(self, limit, cost)
    -- @inline note_low(self.used, self.drained) -> self.low
    self.gone_after_us = nil
    self.used = self.used + cost
end

local function force(self, limit, cost)
    charge(self, limit, min(cost, limit.forced_max - self.used))
end

local function receipt(self)
    -- @inline begin_receipt(self.used, self.drained) -> self.incarnation, self.mark, self.low
    return self.incarnation, self.mark
end

-- Refunds a level, or some whole tokens, at most all. Returns the whole tokens refunded, or nothing if nothing changed.
local function lower_by(self, limit, by_used, by_drained)
    by_drained = by_drained or 0
    -- @inline take_out(limit.n) -> self.used, self.drained, self.mark, by_used, by_drained
    if by_used == 0 then
        return
    end
    self.gone_after_us = nil
    if self.used == 0 then
        untouched(self)
    end
    return by_used - (by_drained > 0 and 1 or 0)
end

local function refund(self, limit, incarnation, at_us, amount, marked, unused)
    if incarnation == 0 or self.incarnation ~= incarnation or now < at_us then
        return
    end
    local tokens, rest = drained_since(at_us, 0, limit.n, limit.d, amount)
    local used, drained
    -- @inline returnable(amount, tokens, rest, unused, marked, self.mark, self.low) -> used, drained
    return lower_by(self, limit, used, drained)
end

local function reply(self, limit, cost, out, i)
    out[i], out[i + 1], out[i + 2] = self.used, self.drained, self.gone_after_us or -1
end

-- Returns the record's kind and body, and the us until the bucket is empty; nothing once it is.
local function pack(self, limit)
    if self.used == 0 then
        return
    end
    local is_long
    -- @inline has_long_records(limit.burst, limit.d, limit.count, limit.code) -> is_long
    -- Force can exceed the burst, and with it the width of a short record.
    is_long = is_long or self.used >= 65536 or self.incarnation > 0
    local format, bytes, record, until_us
    -- @inline record_format(is_long) -> format, bytes
    -- @inline pack_level(self.used, self.drained, format, (is_long and 0 or limit.code * 16) + now_high, limit.n,
    --     limit.d, limit.count, limit.count * 65536, is_long and limit.period_us) -> record, until_us
    local body = string.sub(record, 2)
    if self.incarnation == 0 then
        return is_long and LONG or SHORT, body, until_us
    end
    local receipts
    -- @inline pack_receipts(self.incarnation, self.mark, self.low) -> receipts
    return RECEIPTS, body .. receipts, until_us
end

-- Returns the us until a record is irrelevant under the parameters that it was written under.
local function until_us(value, kind, at)
    local boundary_us, _, period_us, count, used = stored(value, kind, at)
    return boundary_us - now + 1 + used * period_us / count
end

return {
    width = 3, params = params, until_us = until_us, load = load, missing = missing, room = room, charge = charge,
    force = force, receipt = receipt, refund = refund, lower_by = lower_by, reply = reply, pack = pack,
}
