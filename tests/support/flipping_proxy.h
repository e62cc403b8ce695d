// SPDX-License-Identifier: Apache-2.0
//
// Sockets on loopback, and a proxy that turns bits on the way. Test code.
#ifndef TITAN_TESTS_SUPPORT_FLIPPING_PROXY_H_
#define TITAN_TESTS_SUPPORT_FLIPPING_PROXY_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weightstore/client/unix_socket.h"

namespace titan::weightstore::lanes::testing {

// A socket at 127.0.0.1.
inline sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}
inline uint16_t PortOf(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}
inline UniqueFd ListenLoopback(uint16_t* port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(fd.get(), 64), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  *port = ntohs(address.sin_port);
  return fd;
}
inline UniqueFd ConnectLoopback(uint16_t port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Relays connections to a server and turns the bits that it is told to, counted over all
// connections of a direction.
class FlippingProxy {
 public:
  // flip_answers: byte numbers among what the server sends; flip_requests: among what it gets.
  FlippingProxy(uint16_t server, std::vector<uint64_t> flip_answers,
                std::vector<uint64_t> flip_requests)
      : server_(server), stop_(eventfd(0, EFD_CLOEXEC)) {
    flips_[0] = std::move(flip_requests);
    flips_[1] = std::move(flip_answers);
    listener_ = ListenLoopback(&port_);
    thread_ = std::jthread([this] { Relay(); });
  }
  ~FlippingProxy() {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof(one));
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  struct Pair {
    UniqueFd ends[2];  // client, server
  };

  void Relay() {
    for (;;) {
      std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const auto& pair : pairs_) {
        for (const UniqueFd& end : pair->ends) polled.push_back({end.get(), POLLIN, 0});
      }
      poll(polled.data(), polled.size(), -1);
      if (polled[0].revents != 0) return;
      std::vector<size_t> ended;
      for (size_t i = 0; i < pairs_.size(); ++i) {
        for (size_t side = 0; side < 2; ++side) {
          if (polled[2 + 2 * i + side].revents != 0 && !Pump(*pairs_[i], side)) ended.push_back(i);
        }
      }
      while (!ended.empty()) {
        const size_t i = ended.back();
        while (!ended.empty() && ended.back() == i) ended.pop_back();
        pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (polled[1].revents != 0) {
        auto pair = std::make_unique<Pair>();
        pair->ends[0] = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        pair->ends[1] = ConnectLoopback(server_);
        pairs_.push_back(std::move(pair));
      }
    }
  }

  bool Pump(Pair& pair, size_t side) {
    char buffer[65536];
    const ssize_t size = recv(pair.ends[side].get(), buffer, sizeof(buffer), 0);
    if (size <= 0) return false;
    for (const uint64_t at : flips_[side]) {
      if (at >= seen_[side] && at < seen_[side] + static_cast<uint64_t>(size)) {
        buffer[at - seen_[side]] ^= 0x10;
      }
    }
    seen_[side] += static_cast<uint64_t>(size);
    return send(pair.ends[1 - side].get(), buffer, static_cast<size_t>(size), MSG_NOSIGNAL) == size;
  }

  const uint16_t server_;
  UniqueFd stop_, listener_;
  uint16_t port_ = 0;
  std::vector<uint64_t> flips_[2];
  uint64_t seen_[2] = {0, 0};
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::jthread thread_;
};

}  // namespace titan::weightstore::lanes::testing

#endif  // TITAN_TESTS_SUPPORT_FLIPPING_PROXY_H_
