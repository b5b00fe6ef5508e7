package packet

// A Link is the number of an interface by which packets arrive or leave. It is not in a packet's
// bytes: the receiver chooses the numbers, and with them the side. 0 is no link.
type Link uint16

// Outside links are tunnels to other clusters. Inside links, with lower numbers, lead to nodes or
// to the host itself. Higher numbers are no links; lookups use them as markers.
const (
	FirstOutside Link = 0xff00
	LastOutside  Link = 0xffef
)

// Outside reports whether the link is on the outside.
func (l Link) Outside() bool { return l-FirstOutside <= LastOutside-FirstOutside }
