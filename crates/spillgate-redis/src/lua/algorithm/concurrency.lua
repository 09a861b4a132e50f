-- Concurrency: permits held and not expired <= count.
--
-- Mirrors concurrency.rs. A charge of cost c is one hold of c permits, named by the nonce of its call and its position
-- in the reply. A hold of several permits has a second member, below 0. As nearly all holds are of one permit, the
-- number of permits held is one count of a range, and what holds of several have in addition.
--
-- Parameters: count, hold_us
-- Reply:   held, retry_after_us (-1: never), reset_after_us
-- Bodies:  kind 2: last, shift, latest, holds, and the permits that they have beyond one each (expired ones too)
-- Own key: a sorted set: each hold's nonce and position, scored by its end; if it has several permits, the same
--          name with '+', scored by minus their number

local HELD = 2
-- Expired holds deleted by one call: more than one, so that their number falls; few, so that taking a permit
-- stays cheap.
local FORGOTTEN_MOST = 64

local function params(program, i)
    return { count = program[i], hold_us = program[i + 1] }, i + 2
end

local function hold(incarnation, slot)
    return pack_record('>I6I4', incarnation, slot)
end

-- Resets to no holds. Expired ones are deleted with the whole key.
local function untouched(self)
    self.held, self.holds, self.expired, self.extra = 0, 0, 0, 0
    self.clock_us, self.shift_us, self.last_us, self.latest_us = now, 0, 0, 0
    self.rebased = nil
    return self
end

local function permits(self, name)
    if self.extra == 0 then
        return 1
    end
    return -tonumber(redis.call('ZSCORE', self.own_key, name .. '+') or -1)
end

local function load(value, kind, at, limit, own_key)
    local self = { own_key = own_key }
    local last_us, shift_us, latest_us, holds, extra = unpack_record('>I7I7I7I6I6', value, at)
    -- The clock stepped back. A small step is tolerated: the last write counts as now. A larger one shifts the log of
    -- holds.
    local rebased = last_us - now - shift_us > min(1000000, limit.hold_us)
    if rebased then
        shift_us = last_us - now
    end
    local clock_us = max(now + shift_us, last_us)
    -- Every hold has expired, so the set need not be counted.
    if latest_us <= clock_us then
        return untouched(self)
    end
    local lasting = redis.pcall('ZCOUNT', own_key, clock_us + 1, '+inf')
    if lasting == 0 or type(lasting) ~= 'number' then
        return lasting == 0 and untouched(self) or nil
    end
    self.held, self.holds, self.expired, self.extra = lasting + extra, holds, holds - lasting, extra
    self.clock_us, self.shift_us, self.last_us, self.latest_us = clock_us, shift_us, last_us, latest_us
    self.rebased = rebased
    if extra > 0 and holds > lasting then
        for _, name in ipairs(redis.call('ZRANGEBYSCORE', own_key, 0, clock_us)) do
            self.held = self.held + 1 - permits(self, name)
        end
    end
    return self
end

-- Returns the permits without a record: all free, or after a loss of data all taken at the instant of the loss. Those
-- are stored only once they change: see `take_lost`.
local function missing(limit, own_key)
    local self = untouched({ own_key = own_key })
    if lost_us > 0 and now - lost_us < limit.hold_us then
        self.held, self.latest_us, self.is_lost = limit.count, lost_us + limit.hold_us, true
    end
    return self
end

-- Returns how many more units fit; negative if force used more than the limit.
local function room(self, limit)
    return limit.count - self.held
end

-- Deletes some holds that have ended, so that no single call pays for all.
local function forget_ended(self)
    local gone = redis.call('ZRANGEBYSCORE', self.own_key, 0, self.clock_us, 'LIMIT', 0, FORGOTTEN_MOST)
    local count = #gone
    if count == 0 then
        return
    end
    for i = 1, count do
        local several = permits(self, gone[i]) - 1
        if several > 0 then
            self.extra = self.extra - several
            gone[#gone + 1] = gone[i] .. '+'
        end
    end
    redis.call('ZREM', self.own_key, unpack(gone))
    self.holds, self.expired = self.holds - count, self.expired - count
end

local function charge(self, limit, weight, slot)
    if self.held == 0 then
        redis.call('UNLINK', self.own_key)
    elseif self.expired > 0 then
        forget_ended(self)
    end
    local end_us, name = self.clock_us + limit.hold_us, hold(nonce, slot)
    redis.call('ZADD', self.own_key, end_us, name)
    if weight > 1 then
        redis.call('ZADD', self.own_key, -weight, name .. '+')
    end
    self.held, self.holds, self.extra = self.held + weight, self.holds + 1, self.extra + weight - 1
    self.last_us, self.latest_us = self.clock_us, max(self.latest_us, end_us)
end

local function take_lost(self, limit)
    if self.is_lost then
        self.clock_us, self.held, self.is_lost = lost_us, 0, false
        charge(self, limit, limit.count, 0)
        self.clock_us = now
    end
end

local function receipt(self, slot)
    return nonce, slot
end

local function force(self, limit, cost, slot)
    take_lost(self, limit)
    local forced = min(cost, 2 * limit.count - self.held)
    if forced > 0 then
        charge(self, limit, forced, slot)
    end
end

-- Returns when a hold ends; nothing if it has ended or was released.
local function end_of(self, name)
    -- Without holds the clock was reset, so ends that are still stored cannot be compared with it.
    local end_us = self.holds > 0 and tonumber(redis.call('ZSCORE', self.own_key, name) or 0) or 0
    return end_us > self.clock_us and end_us or nil
end

-- Lowers a hold by at most `by`. Returns the units refunded, or nothing if nothing changed.
local function lower(self, name, by)
    local end_us = end_of(self, name)
    if not end_us or by == 0 then
        return
    end
    local weight = permits(self, name)
    by = min(by, weight)
    local left = weight - by
    if left > 1 then
        redis.call('ZADD', self.own_key, -left, name .. '+')
    elseif weight > 1 then
        redis.call('ZREM', self.own_key, name .. '+')
    end
    self.held, self.extra = self.held - by, self.extra - weight + max(left, 1)
    if left > 0 then
        return by
    end
    redis.call('ZREM', self.own_key, name)
    self.holds = self.holds - 1
    if self.held == 0 then
        untouched(self)
    elseif end_us == self.latest_us then
        self.latest_us = tonumber(redis.call('ZREVRANGE', self.own_key, 0, 0, 'WITHSCORES')[2])
    end
    return by
end

local function refund(self, limit, incarnation, at_us, amount, slot, unused)
    return lower(self, hold(incarnation, slot), unused)
end

-- Lowers the use by `amount`. The holds that end first go first, since they are the most likely to be abandoned, and
-- of two that end at one instant the one with the smaller name.
local function lower_by(self, limit, amount)
    local returned = min(amount, self.held)
    if returned == 0 then
        return
    end
    take_lost(self, limit)
    if returned == self.held then
        untouched(self)
        return returned
    end
    local before, left = self.held, self.held - returned
    while self.held > left do
        local first = redis.call('ZRANGEBYSCORE', self.own_key, self.clock_us + 1, '+inf', 'LIMIT', 0, 1)
        -- A record that counts other holds than the set has must not keep the server busy for ever.
        if not first[1] or not lower(self, first[1], self.held - left) then
            break
        end
    end
    return before - self.held
end

-- Extends a hold by `for_us` from now, by at most another max hold, and never shortens it; does nothing if that is 0.
-- Returns whether it is still held.
local function renew(self, limit, incarnation, slot, for_us)
    local name = hold(incarnation, slot)
    local end_us = end_of(self, name)
    if end_us and for_us > 0 then
        end_us = max(end_us, self.clock_us + min(limit.hold_us, for_us))
        redis.call('ZADD', self.own_key, end_us, name)
        self.last_us, self.latest_us = self.clock_us, max(self.latest_us, end_us)
    end
    return end_us ~= nil
end

-- Returns the instant after which at most `room` is held: by rank, or by adding up the holds that end first if some
-- have several permits.
local function end_leaving(self, room)
    if self.is_lost then
        return self.latest_us
    end
    if self.extra == 0 then
        return tonumber(redis.call('ZREVRANGE', self.own_key, room, room, 'WITHSCORES')[2])
    end
    local excess = self.held - room
    for seen = 0, self.holds, 100 do
        local found = redis.call('ZRANGEBYSCORE', self.own_key, self.clock_us + 1, '+inf', 'WITHSCORES',
            'LIMIT', seen, 100)
        for i = 1, #found, 2 do
            excess = excess - permits(self, found[i])
            if excess <= 0 then
                return tonumber(found[i + 1])
            end
        end
    end
    return self.latest_us
end

local function reply(self, limit, cost, out, i)
    local room, clock_us = limit.count - cost, now + self.shift_us
    out[i], out[i + 1], out[i + 2] = self.held, room < 0 and -1 or 0, 0
    if room >= 0 and self.held > room then
        out[i + 1] = end_leaving(self, room) - clock_us
    end
    if self.held > 0 then
        out[i + 2] = self.latest_us - clock_us
    end
end

-- Returns the record's kind and body, and the us until it is irrelevant; nothing once it is.
local function pack(self)
    if self.held == 0 then
        redis.call('UNLINK', self.own_key)
        return
    end
    local until_us = self.latest_us - now - self.shift_us
    keep(self.own_key, nil, until_us)
    return HELD, pack_record('>I7I7I7I6I6', self.last_us, self.shift_us, self.latest_us, self.holds, self.extra),
        until_us
end

-- Returns the us until a record is irrelevant under the parameters that it was written under.
local function until_us(value, kind, at)
    local last_us, shift_us, latest_us = unpack_record('>I7I7I7', value, at)
    -- At most as long as after a re-base, which the next call that reads it may make.
    return min(latest_us - shift_us - now, latest_us - last_us + 1000000)
end

return {
    width = 3, params = params, until_us = until_us, load = load, missing = missing, room = room, charge = charge,
    force = force, receipt = receipt, refund = refund, lower_by = lower_by, renew = renew, reply = reply,
    pack = pack,
}
