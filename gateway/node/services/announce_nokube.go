//go:build nokube

package services

import (
	"net/netip"

	"culvert/gateway/configfile"
)

func (*Config) readAnnounce(e *configfile.Errors, f *File) {
	if len(f.Announce)+len(f.AnnounceOn) > 0 {
		e.Add("services.announce", "this culvert was built with the tag nokube; build it without")
	}
}

func (*Config) validateAnnounce(*configfile.Errors) {}

func (*Config) answers() []netip.Addr { return nil }
