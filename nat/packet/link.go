package packet

// A Link is the number of where packets come in or go out. The bytes of a packet do not tell it: whoever receives them chooses the
// numbers, and with them the side. 0 is no link.
type Link uint16

// Outside links are tunnels to other clusters. Inside ones, below them, lead to nodes or to the host itself. What is above stands for no
// link and is left to who looks for them.
const (
	FirstOutside Link = 0xff00
	LastOutside  Link = 0xffef
)

// Outside reports whether the link is on the outside.
func (l Link) Outside() bool { return l-FirstOutside <= LastOutside-FirstOutside }
