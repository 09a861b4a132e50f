# For https://docs.brew.sh/Taps. deploy/homebrew/render puts a version and its checksums in place of the names in @.
class Spillgate < Formula
  desc "Distributed rate limiter, exact across a fleet"
  homepage "https://github.com/spillgate/spillgate"
  version "@VERSION@"
  license any_of: ["Apache-2.0", "MIT"]

  on_macos do
    on_arm do
      url "https://github.com/spillgate/spillgate/releases/download/v@VERSION@/spillgate-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@aarch64-apple-darwin@"
    end
    on_intel do
      url "https://github.com/spillgate/spillgate/releases/download/v@VERSION@/spillgate-@VERSION@-x86_64-apple-darwin.tar.gz"
      sha256 "@x86_64-apple-darwin@"
    end
  end

  on_linux do
    on_arm do
      url "https://github.com/spillgate/spillgate/releases/download/v@VERSION@/spillgate-@VERSION@-aarch64-unknown-linux-musl.tar.gz"
      sha256 "@aarch64-unknown-linux-musl@"
    end
    on_intel do
      url "https://github.com/spillgate/spillgate/releases/download/v@VERSION@/spillgate-@VERSION@-x86_64-unknown-linux-musl.tar.gz"
      sha256 "@x86_64-unknown-linux-musl@"
    end
  end

  def install
    bin.install "spillgate"
    pkgshare.install "config", "spillgate.schema.json"
    # An upgrade keeps a file that was changed.
    (etc/"spillgate").install "spillgate.toml"
  end

  service do
    run [opt_bin/"spillgate", "serve", "--config", etc/"spillgate/spillgate.toml"]
    keep_alive true
    log_path var/"log/spillgate.log"
    error_log_path var/"log/spillgate.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/spillgate --version")
    system bin/"spillgate", "validate", "--deny", "warnings", pkgshare/"config/single.toml"
  end
end
