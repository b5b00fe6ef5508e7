package rtnl

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Socket is a socket of this network namespace that accepts any peer.
type Socket struct {
	At    netip.AddrPort
	Inode string
}

// Sockets reads one of the kernel's lists of sockets: tcp, tcp6, udp or udp6.
func Sockets(list string) (all []Socket) {
	f, err := os.Open("/proc/thread-self/net/" + list)
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || !strings.HasSuffix(fields[2], ":0000") {
			continue
		}
		host, port, ok := strings.Cut(fields[1], ":")
		bytes, err1 := hex.DecodeString(host)
		number, err2 := strconv.ParseUint(port, 16, 16)
		if !ok || err1 != nil || err2 != nil || len(bytes)%4 != 0 {
			continue
		}
		for i := 0; i < len(bytes); i += 4 { // words in the machine's byte order
			binary.BigEndian.PutUint32(bytes[i:], binary.NativeEndian.Uint32(bytes[i:]))
		}
		address, _ := netip.AddrFromSlice(bytes)
		all = append(all, Socket{netip.AddrPortFrom(address.Unmap(), uint16(number)), fields[9]})
	}
	return all
}

// SocketOwners returns processes by the inodes of their sockets, as far as this process may see
// them.
func SocketOwners() map[string]string {
	all := map[string]string{}
	eachFile(func(pid, file string) (more bool) {
		to, err := os.Readlink(file)
		if inode, ok := strings.CutPrefix(to, "socket:["); err == nil && ok {
			all[strings.TrimSuffix(inode, "]")] = describe(pid)
		}
		return true
	})
	return all
}

// ListenerAt names the process whose socket occupies an address; "" if this process may not see it.
func ListenerAt(protocol uint8, at netip.AddrPort) string {
	lists := []string{"tcp", "tcp6"}
	if protocol == unix.IPPROTO_UDP {
		lists = []string{"udp", "udp6"}
	}
	for _, list := range lists {
		for _, x := range Sockets(list) {
			if x.At.Port() == at.Port() && (x.At.Addr() == at.Addr() || x.At.Addr().IsUnspecified() ||
				at.Addr().IsUnspecified()) {
				if owner := SocketOwners()[x.Inode]; owner != "" {
					return owner
				}
			}
		}
	}
	return ""
}

// NameHolder names the process that holds a name of unixsocket.Hold in this network namespace.
func NameHolder(name string) string {
	list, _ := os.ReadFile("/proc/thread-self/net/unix")
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); len(fields) == 8 && fields[7] == "@"+name {
			if owner := SocketOwners()[fields[6]]; owner != "" {
				return owner
			}
		}
	}
	return "a process that this one may not see; as root of the machine: ss -xap | grep -F @" + name
}

// TUNHolder names the process that has a TUN device of this network namespace open, or says how to
// find it.
func TUNHolder(name string) (holder string) {
	here, _ := os.Readlink("/proc/thread-self/ns/net")
	eachFile(func(pid, file string) (more bool) {
		var is unix.Stat_t
		if unix.Stat(file, &is) != nil || is.Mode&unix.S_IFMT != unix.S_IFCHR || is.Rdev != unix.Mkdev(10, 200) {
			return true
		}
		// Another namespace may have a device with this name.
		if there, err := os.Readlink("/proc/" + pid + "/ns/net"); err != nil || there != here {
			return true
		}
		info, _ := os.ReadFile("/proc/" + pid + "/fdinfo/" + filepath.Base(file))
		if strings.Contains(string(info)+"\n", "\niff:\t"+name+"\n") {
			holder = describe(pid)
		}
		return holder == ""
	})
	if holder == "" {
		return fmt.Sprintf(
			"a process that this one may not see; as root of the machine: grep -ls 'iff:.%s$' /proc/[0-9]*/fdinfo/*",
			name)
	}
	return holder
}

// eachFile visits the open files of all processes, as far as this process may see them.
func eachFile(visit func(pid, file string) (more bool)) {
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		if !visit(strings.Split(file, "/")[2], file) {
			return
		}
	}
}

// describe names a process and its user.
func describe(pid string) string {
	name, _ := os.ReadFile("/proc/" + pid + "/comm")
	text := strings.TrimSpace(string(name)) + ", process " + pid
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	for line := range strings.Lines(string(status)) {
		if ids := strings.Fields(line); len(ids) > 2 && ids[0] == "Uid:" {
			text += " of user " + ids[2] // the effective one
		}
	}
	return text
}
