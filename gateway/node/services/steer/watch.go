package steer

import (
	"bytes"
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// Concerns reports whether a kernel message may be about the routes and rules to the device with an
// index.
func Concerns(m syscall.NetlinkMessage, device int) bool {
	switch m.Header.Type {
	case unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return true
	case unix.RTM_DELROUTE:
		const protocol = 5 // of struct rtmsg
		return len(m.Data) > protocol && m.Data[protocol] == lasting
	case unix.RTM_NEWLINK, unix.RTM_DELLINK: // a device that goes down loses its routes
		const index = 4 // of struct ifinfomsg
		return len(m.Data) >= index+4 && binary.NativeEndian.Uint32(m.Data[index:]) == uint32(device) ||
			bytes.Contains(m.Data, []byte(VIPPrefix))
	}
	return false
}
