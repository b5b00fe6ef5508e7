//go:build !linux

package nat

import "unsafe"

func preferLargePages(unsafe.Pointer, uintptr) {}
