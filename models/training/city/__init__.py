"""A rendered city: roads, traffic, vehicles with an identity, cameras that look at them.

`roads` is the map, `traffic` moves vehicles over it, `vehicles` says what they look like, `cameras` projects, `scenery`
draws what stands still and `rendering` makes frames and their truth. Metres, seconds, radians; x to the east, y to the
north, z up.
"""
