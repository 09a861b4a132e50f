-- Fixed window: in each window, used <= count.
--
-- Mirrors fixed_window.rs: one window and the use in it. A stored window counts until its end, even under
-- other parameters; a charge moves its use into the limit's own window.
--
-- Parameters: count, period_us, and if that is 0 the windows of a calendar around now: the start of
--          the one before, of the current one, its end, the end of the next
-- Reply:   used, left_us (until the window ends; 0 while nothing is used)
-- Body:    start, length_us, used, incarnation

local KIND = 3
local params, force, receipt
-- @inline counting() -> params, force, receipt

-- Returns the parameters with the window that contains now and the end of the next one; nothing if now lies outside the
-- calendar.
local function windows(program, i)
    local limit = params(program, i)
    if limit.period_us > 0 then
        limit.start_us = now - now % limit.period_us
        limit.end_us = limit.start_us + limit.period_us
        limit.next_end_us = limit.end_us + limit.period_us
        return limit, i + 6
    end
    for b = i + 2, i + 4 do
        -- A stored window may begin up to a second ahead of now, and must lie inside too.
        local last = b == i + 4
        if program[b] <= now and now < program[b + 1] - (last and 1000000 or 0) then
            limit.start_us, limit.end_us = program[b], program[b + 1]
            limit.next_end_us = not last and program[b + 2]
            return limit, i + 6
        end
    end
end

local function load(value, kind, at, limit)
    local start_us, length_us, used, incarnation = unpack_record('>I7I6I4I6', value, at)
    local self = { start_us = start_us, end_us = start_us + length_us, used = used, incarnation = incarnation }
    -- The clock stepped back by more than is tolerated: the use moves into the window of now.
    if start_us - now > (limit.period_us > 0 and min(1000000, limit.period_us) or 1000000) then
        self.start_us, self.end_us, self.incarnation, self.rebased = limit.start_us, limit.end_us, 0, true
    elseif now >= self.end_us then
        self.start_us, self.end_us, self.used, self.incarnation = now, now, 0, 0
    end
    return self
end

-- Returns a window without a record: unused, or used up if a loss of data lies in the current window.
local function missing(limit)
    local self = { start_us = now, end_us = now, used = 0, incarnation = 0 }
    if lost_us > 0 and lost_us >= limit.start_us then
        self.start_us, self.end_us, self.used = limit.start_us, limit.end_us, limit.count
    end
    return self
end

-- Returns how many more units fit; negative if force used more than the limit.
local function room(self, limit)
    return limit.count - self.used
end

local function charge(self, limit, cost)
    local start_us, end_us = limit.start_us, limit.end_us
    -- A stored window may be the next one: it may begin up to a second ahead of now.
    if self.start_us >= end_us then
        start_us, end_us = end_us, limit.next_end_us
    end
    if start_us ~= self.start_us or end_us ~= self.end_us then
        self.start_us, self.end_us, self.incarnation = start_us, end_us, 0
    end
    self.used = self.used + cost
end

-- Lowers the use. Returns by how much, or nothing if nothing changed.
local function lower_by(self, limit, amount)
    local back = min(amount, self.used)
    if back == 0 then
        return
    end
    self.used = self.used - back
    if self.used == 0 then
        self.start_us, self.end_us, self.incarnation = now, now, 0
    end
    return back
end

local function refund(self, limit, incarnation, at_us, amount, slot, unused)
    if incarnation ~= 0 and incarnation == self.incarnation and at_us <= now then
        return lower_by(self, limit, unused)
    end
end

local function reply(self, limit, cost, out, i)
    out[i], out[i + 1] = self.used, self.used > 0 and self.end_us - now or 0
end

-- Returns the record's kind and body, and the us until it is irrelevant; nothing once it is.
local function pack(self, limit)
    if self.used == 0 then
        return
    end
    local body = pack_record('>I7I6I4I6', self.start_us, self.end_us - self.start_us, self.used, self.incarnation)
    return KIND, body, self.end_us - now
end

-- Returns the us until a record is irrelevant.
local function until_us(value, kind, at)
    local start_us, length_us = unpack_record('>I7I6', value, at)
    return start_us + length_us - now
end

return {
    width = 2, params = windows, until_us = until_us, load = load, missing = missing, room = room, charge = charge,
    force = force, receipt = receipt, refund = refund, lower_by = lower_by, reply = reply, pack = pack,
}
