// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/datapath/backends"
	"github.com/loxilight/loxilight/loxilightd/internal/channel"
)

// lockPins prevents a daemon of another instance, which has its own run directory, from using the
// same pins: each daemon would delete the pins of the other. It returns nil if the directory does
// not exist.
func lockPins(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock of the pins: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer func() { _ = f.Close() }() // it was only read
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("loxilightd is %w with the pins in %s: give this instance another pinDir", channel.ErrRunning, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// openPlane locks the pin directory and opens the data plane. If the directory does not exist, it
// is locked once the data plane has created it.
func (d *loxilightd) openPlane() error {
	lock, err := lockPins(d.cfg.PinDir)
	if err != nil {
		return err
	}
	fresh := lock == nil
	if !fresh {
		d.closers = append(d.closers, lock.Close)
	}
	if d.plane, err = d.open(d.cfg.Backend, planeConfig(d.cfg), d.log); err != nil {
		return err
	}
	d.closers = append(d.closers, d.plane.Close)
	if d.network, err = backends.OpenNetwork(d.cfg.Backend, planeConfig(d.cfg), d.log); err != nil {
		return err
	}
	if d.network != nil {
		d.closers = append(d.closers, d.network.Close)
		d.plane = backends.WithSwitch(d.plane, d.network)
	}
	if fresh {
		if lock, err = lockPins(d.cfg.PinDir); err == nil && lock != nil {
			d.closers = append(d.closers, lock.Close)
		}
	}
	return err
}
