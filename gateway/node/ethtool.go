package node

import (
	"bytes"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FeatureUDPSegmentation is the feature of links that accept whole UDP trains (UDP_SEGMENT), as
// named by `ethtool -k`.
const FeatureUDPSegmentation = "tx-udp-segmentation"

const (
	maxFeatures    = 256 // Linux 6.18 has 64
	featureNameLen = 32  // bytes, ETH_GSTRING_LEN
	featureStrings = 4   // ETH_SS_FEATURES, the string set of feature names
)

// SetFeatures turns features of an interface in this thread's network namespace on or off. It skips
// features that the kernel does not know. Some features of some interfaces are fixed; Features
// returns the result.
func SetFeatures(name string, on bool, features ...string) error {
	fd, names, err := openFeatures(name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)

	// struct ethtool_sfeatures
	var request struct {
		command, size uint32 // size in blocks
		blocks        [maxFeatures / 32]struct{ valid, requested uint32 }
	}
	request.command, request.size = unix.ETHTOOL_SFEATURES, uint32((len(names)+31)/32)
	for i, n := range names {
		if slices.Contains(features, n) {
			request.blocks[i/32].valid |= 1 << (i % 32)
			if on {
				request.blocks[i/32].requested |= 1 << (i % 32)
			}
		}
	}
	if err := ethtool(fd, name, unsafe.Pointer(&request)); err != nil {
		return fmt.Errorf("node: set features of %s: %w", name, err)
	}
	return nil
}

// Features returns the names of the enabled features of an interface in this thread's network
// namespace.
func Features(name string) ([]string, error) {
	fd, names, err := openFeatures(name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)

	// struct ethtool_gfeatures
	var request struct {
		command, size uint32 // size in blocks
		blocks        [maxFeatures / 32]struct{ available, requested, active, neverChanged uint32 }
	}
	request.command, request.size = unix.ETHTOOL_GFEATURES, uint32((len(names)+31)/32)
	if err := ethtool(fd, name, unsafe.Pointer(&request)); err != nil {
		return nil, fmt.Errorf("node: features of %s: %w", name, err)
	}
	var on []string
	for i, n := range names {
		if request.blocks[i/32].active&(1<<(i%32)) != 0 {
			on = append(on, n)
		}
	}
	return on, nil
}

// openFeatures opens a socket for ethtool and reads the kernel's feature names, in the order of
// their bits.
func openFeatures(name string) (fd int, names []string, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, fmt.Errorf("node: features of %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	// struct ethtool_sset_info
	info := struct {
		command, reserved uint32
		mask              uint64
		count             uint32
	}{command: unix.ETHTOOL_GSSET_INFO, mask: 1 << featureStrings}
	if err := ethtool(fd, name, unsafe.Pointer(&info)); err != nil {
		return -1, nil, fmt.Errorf("node: number of features of %s: %w", name, err)
	}
	if info.count > maxFeatures { // the kernel would write them all
		return -1, nil, fmt.Errorf("node: %s has %d features, more than the %d known to exist", name,
			info.count, maxFeatures)
	}
	// struct ethtool_gstrings
	strings := struct {
		command, set, count uint32
		data                [maxFeatures][featureNameLen]byte
	}{command: unix.ETHTOOL_GSTRINGS, set: featureStrings, count: info.count}
	if err := ethtool(fd, name, unsafe.Pointer(&strings)); err != nil {
		return -1, nil, fmt.Errorf("node: names of the features of %s: %w", name, err)
	}
	for i := range info.count {
		n, _, _ := bytes.Cut(strings.data[i][:], []byte{0})
		names = append(names, string(n))
	}
	return fd, names, nil
}

// ethtool makes one SIOCETHTOOL request (netdevice(7)). data points to the request's struct, which
// begins with its command.
func ethtool(fd int, name string, data unsafe.Pointer) error {
	var ifreq struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	if len(name) >= len(ifreq.name) {
		return unix.ENODEV
	}
	copy(ifreq.name[:], name)
	ifreq.data = data
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifreq)))
	if errno != 0 {
		return errno
	}
	return nil
}
