-- Sliding window: prev * (P - e) + curr * P <= count * P, without rounding.
--
-- Mirrors sliding_window.rs: the counts of the current window and of the one before it. `weight` is the part
-- of the previous count that still counts, rounded up; for whole costs that is as exact as the products.
-- State of another period is counted by that period until it is charged.
--
-- Parameters: count, period_us
-- Reply:   prev, curr, elapsed_us (negative while the window lies ahead of now), period_us
-- Body:    start, period_us, prev, curr, incarnation

local KIND = 4
local params, force, receipt
-- @inline counting() -> params, force, receipt

-- Returns how much of the current window is left; all of it while the window lies ahead of now.
local function left_us(self)
    return self.period_us - max(0, now - self.start_us)
end

local function weigh(self)
    self.weight = 0
    if self.prev > 0 then
        local whole, rest = mul_div(self.prev, left_us(self), self.period_us)
        self.weight = whole + (rest > 0 and 1 or 0)
    end
end

-- Starts the limit's window that contains an instant, with `used` units in it and none before it.
local function begin(self, limit, at_us, used)
    self.start_us, self.period_us = at_us - at_us % limit.period_us, limit.period_us
    self.prev, self.weight, self.curr, self.incarnation = 0, 0, min(used, 4294967295), 0
    return self
end

-- Returns the counts of a stored window, aged to now.
local function aged(limit, start_us, period_us, prev, curr, incarnation)
    if now >= start_us + period_us then
        start_us, prev, curr = start_us + period_us, curr, 0
        if prev == 0 or now >= start_us + period_us then
            return begin({}, limit, now, 0)
        end
    end
    local self = { start_us = start_us, period_us = period_us, prev = prev, curr = curr, incarnation = incarnation }
    weigh(self)
    return self
end

local function load(value, kind, at, limit)
    local start_us, period_us, prev, curr, incarnation = unpack_record('>I7I6I4I4I6', value, at)
    -- The clock stepped back by more than is tolerated: all counts move into the window of now.
    if start_us - now > min(1000000, 2 * limit.period_us) then
        return begin({ rebased = true }, limit, now, prev + curr)
    end
    return aged(limit, start_us, period_us, prev, curr, incarnation)
end

-- Returns a window without a record: unused, or used up at the instant of a loss of data.
local function missing(limit)
    if lost_us == 0 then
        return begin({}, limit, now, 0)
    end
    return aged(limit, lost_us - lost_us % limit.period_us, limit.period_us, 0, limit.count, 0)
end

-- Returns how many more units fit; negative if force used more than the limit.
local function room(self, limit)
    return limit.count - self.curr - self.weight
end

local function charge(self, limit, cost)
    -- The first charge under another period converts the counts to it.
    if self.period_us ~= limit.period_us then
        begin(self, limit, max(now, self.start_us), self.curr + self.weight)
    end
    self.curr = self.curr + cost
end

-- Lowers the counts. Returns how much less is used now, or nothing if nothing changed.
local function lower(self, limit, prev, curr)
    if prev == self.prev and curr == self.curr then
        return
    end
    local used = self.curr + self.weight
    self.prev, self.curr = prev, curr
    if prev == 0 and curr == 0 then
        begin(self, limit, now, 0)
    end
    weigh(self)
    return used - self.curr - self.weight
end

-- Takes `unused` units off the window in which they were charged.
local function refund(self, limit, incarnation, at_us, amount, slot, unused)
    if incarnation == 0 or incarnation ~= self.incarnation or now < at_us then
        return
    end
    if at_us >= self.start_us then
        return lower(self, limit, self.prev, max(0, self.curr - unused))
    elseif at_us + self.period_us >= self.start_us then
        return lower(self, limit, max(0, self.prev - unused), self.curr)
    end
end

-- Lowers the use by `amount`: the current window first, then the window before it, to the largest count that
-- weighs that much less.
local function lower_by(self, limit, amount)
    if amount <= self.curr then
        return lower(self, limit, self.prev, self.curr - amount)
    end
    local weight = max(0, self.weight - (amount - self.curr))
    local prev = mul_div(weight, self.period_us, left_us(self))
    return lower(self, limit, min(self.prev, prev), 0)
end

local function reply(self, limit, cost, out, i)
    out[i], out[i + 1], out[i + 2], out[i + 3] = self.prev, self.curr, now - self.start_us, self.period_us
end

-- Returns the record's kind and body, and the us until it is irrelevant; nothing once it is.
local function pack(self, limit)
    if self.prev == 0 and self.curr == 0 then
        return
    end
    local body = pack_record('>I7I6I4I4I6', self.start_us, self.period_us, self.prev, self.curr, self.incarnation)
    return KIND, body, self.start_us - now + (self.curr > 0 and 2 or 1) * self.period_us
end

-- Returns the us until a record is irrelevant.
local function until_us(value, kind, at)
    local start_us, period_us, prev, curr = unpack_record('>I7I6I4I4', value, at)
    return start_us - now + (curr > 0 and 2 or 1) * period_us
end

return {
    width = 4, params = params, until_us = until_us, load = load, missing = missing, room = room, charge = charge,
    force = force, receipt = receipt, refund = refund, lower_by = lower_by, reply = reply, pack = pack,
}
