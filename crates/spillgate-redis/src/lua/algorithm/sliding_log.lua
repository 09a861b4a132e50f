-- Sliding log: in every half-open interval of one period, admitted <= count, exactly.
--
-- Mirrors sliding_log.rs. The log lists the instant of every admitted unit, oldest first. So the n-th unit needs no
-- search, and the units before an instant are found by bisection, with reads of six bytes.
--
-- The list is a ring: unit n is in place (head + n) % places. An admission writes behind the newest unit. Expired units
-- leave when a write moves the head; their places are used again. Only a ring that is full, or much too large, is
-- copied into another: half as large again as needed, but not larger than a full log. A refund closes the gap that it
-- makes: it moves the units behind it. A peek and a denial write nothing, so they leave the head where it is.
--
-- A log whose units all have one instant has no ring and 0 places: last_us in its record is that instant.
--
-- Parameters: count, period_us
-- Reply:   used, retry_after_us, reset_after_us
-- Body:    kind 5: count, period_us, incarnation, shift_us, last_us, used, head, places
-- Own key: the ring, a string: six bytes for each place, the low bits of the instant. All units are within 366 days of
--          last_us, which has the high bits

local LOG = 5
-- @include sliding_log/ring

local params, force, receipt
-- @inline counting() -> params, force, receipt

local function untouched(self)
    self.used, self.head, self.places = 0, 0, 0
    self.clock_us, self.shift_us = now, 0
    self.incarnation, self.gone_after_us = 0, nil
    return self
end

-- Returns the bytes of some units, at least one, from a unit on.
local function read(self, unit, units)
    if self.places == 0 then
        return string.rep(pack_record(UNIT, self.last_us % WRAP), units)
    end
    local first = (self.head + unit) % self.places
    local beyond = first + units - self.places
    local text = redis.call('GETRANGE', self.own_key, first * WIDTH, (first + units) * WIDTH - 1)
    return beyond > 0 and text .. redis.call('GETRANGE', self.own_key, 0, beyond * WIDTH - 1) or text
end

-- Writes the bytes of units from a unit on.
local function write(self, unit, text)
    local first = (self.head + unit) % self.places
    local fits = (self.places - first) * WIDTH
    redis.call('SETRANGE', self.own_key, first * WIDTH, string.sub(text, 1, fits))
    if #text > fits then
        redis.call('SETRANGE', self.own_key, 0, string.sub(text, fits + 1))
    end
end

local function instant(self, unit)
    return self.last_us - (self.last_us - unpack_record(UNIT, read(self, unit, 1))) % WRAP
end

-- Returns the number of units before an instant.
local function older(self, from_us)
    local found, beyond, step = -1, self.used, 1
    while beyond - found > 1 do
        -- Gallops from the oldest, since the answer is usually near, then bisects.
        local middle = found + step
        if middle >= beyond then
            middle = floor((found + beyond) / 2)
        end
        if instant(self, middle) < from_us then
            found, step = middle, step * 2
        else
            beyond = middle
        end
    end
    return beyond
end

-- Drops the oldest units.
local function drop(self, units)
    self.used = self.used - units
    self.head = self.places > 0 and (self.head + units) % self.places or 0
end

local function load(value, kind, at, limit, own_key)
    local self = untouched({ own_key = own_key })
    local count, period_us, incarnation, shift_us, last_us, used, head, places = unpack_record(BODY, value, at)
    if now + shift_us - last_us >= min(period_us, limit.period_us) then
        return self
    end
    local length = places > 0 and redis.pcall('STRLEN', own_key) or 0
    if length ~= places * WIDTH then
        -- The ring was evicted: the log is unknown, and begins empty. An error means a key of another kind.
        return type(length) == 'number' and self or nil
    end
    -- The clock stepped back. A small step is tolerated: units continue at last_us. A larger one shifts the log.
    if last_us - now - shift_us > min(1000000, limit.period_us) then
        self.rebased, shift_us = true, last_us - now
    end
    self.last_us, self.used, self.head, self.places = last_us, used, head, places
    self.clock_us, self.shift_us = max(now + shift_us, last_us), shift_us
    drop(self, older(self, self.clock_us + 1 - limit.period_us))
    if not self.rebased and period_us ~= limit.period_us then
        self.gone_after_us = last_us - now - shift_us + period_us
    elseif not self.rebased and count == limit.count then
        self.incarnation = incarnation
    end
    return self
end

-- Returns a log without a record: empty, or used up at the instant of a loss of data.
local function missing(limit, own_key)
    local self = untouched({ own_key = own_key })
    if lost_us > 0 and now - lost_us < limit.period_us then
        self.used, self.last_us = limit.count, lost_us
    end
    return self
end

-- Returns how many more units fit; negative if force used more than the limit.
local function room(self, limit)
    return limit.count - self.used
end

local function charge(self, limit, cost)
    local needed, apt = self.used + cost, nil
    -- @inline is_apt(needed, self.places) -> apt
    if self.used > 0 and (self.places > 0 or self.clock_us > self.last_us) then
        local text = string.rep(pack_record(UNIT, self.clock_us % WRAP), cost)
        if apt then
            write(self, self.used, text)
        else
            text = read(self, 0, self.used) .. text
            -- Force can use twice the count.
            local most = needed > limit.count and 2 * limit.count or limit.count
            self.head, self.places = 0, min(most, needed + floor(needed / 2) + 8)
            redis.call('SET', self.own_key, text .. string.rep('\0', self.places * WIDTH - #text))
        end
    end
    self.used, self.last_us, self.gone_after_us = needed, self.clock_us, nil
end

-- Returns the incarnation, raised by as much as the unit's instant is after the charge's. With it refund
-- finds the units.
local function receipt_ahead(self)
    return (receipt(self) + self.clock_us - now - self.shift_us) % WRAP, 0
end

-- Removes some units, at least one, from a unit on. Returns their number.
local function remove(self, unit, units)
    local behind = self.used - unit - units
    if unit == 0 then
        drop(self, units)
    else
        if self.places > 0 and behind > 0 then
            write(self, unit, read(self, unit + units, behind))
        end
        self.used = unit + behind
    end
    self.gone_after_us = nil
    if self.used == 0 then
        untouched(self)
    else
        self.last_us = instant(self, self.used - 1)
    end
    return units
end

local function refund(self, limit, incarnation, at_us, amount, slot, unused)
    local past_us = (incarnation - self.incarnation) % WRAP
    if self.incarnation == 0 or past_us > min(1000000, limit.period_us) or now < at_us then
        return
    end
    local unit_us = at_us + self.shift_us + past_us
    local first = older(self, unit_us)
    local units = min(unused, amount, older(self, unit_us + 1) - first)
    return units > 0 and remove(self, first, units) or nil
end

-- Lowers the use by dropping the oldest units, as if they had expired.
local function lower_by(self, limit, amount)
    local units = min(amount, self.used)
    return units > 0 and remove(self, 0, units) or nil
end

local function expiry_us(self, limit, at_us)
    local wait_us = at_us - now - self.shift_us + limit.period_us
    return min(wait_us, self.gone_after_us or wait_us)
end

local function reply(self, limit, cost, out, i)
    local over = self.used + cost - limit.count
    out[i], out[i + 1], out[i + 2] = self.used, 0, 0
    if over > 0 and over <= self.used then
        out[i + 1] = expiry_us(self, limit, instant(self, over - 1))
    end
    if self.used > 0 then
        out[i + 2] = expiry_us(self, limit, self.last_us)
    end
end

-- Returns the record's kind and body, and the us until it is irrelevant; nothing once it is. The ring lives as long.
local function pack(self, limit)
    if self.used == 0 then
        redis.call('UNLINK', self.own_key)
        return
    end
    local until_us = self.last_us - now - self.shift_us + limit.period_us
    if self.places > 0 then
        keep(self.own_key, nil, until_us)
    end
    return LOG, pack_record(BODY, limit.count, limit.period_us, self.incarnation, self.shift_us,
        self.last_us, self.used, self.head, self.places), until_us
end

-- Returns the us until a record is irrelevant under the parameters that it was written under.
local function until_us(value, kind, at)
    local _, period_us, _, shift_us, last_us = unpack_record(BODY, value, at)
    return last_us - shift_us - now + period_us
end

return {
    width = 3, params = params, until_us = until_us, load = load, missing = missing, room = room, charge = charge,
    force = force, receipt = receipt_ahead, refund = refund, lower_by = lower_by, reply = reply, pack = pack,
}
